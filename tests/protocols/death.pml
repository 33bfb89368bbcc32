/* tests/protocols/death.pml: a model, for the model checker spin, of how a job on
 * one machine ends after a process of it has died.
 *
 * Each of three ranks is a program below its monitor; the monitors are children
 * of the runner, that of the job, that of the supervisor. FAULTS times, at any
 * moment, one of these processes is killed by SIGKILL, or a program exits with a
 * failure. spin tries all interleavings.
 *
 * Each label stands for a function:
 *
 *   report     monitor_note_end, wire_send_exit           launcher/rank_monitor.c, launcher/wire.c
 *   leave      monitor_wait_leave, processes_end          launcher/rank_monitor.c, launcher/processes.c
 *   terminate  monitor_read_launcher, monitor_read_signal launcher/rank_monitor.c
 *   failure    job_note_exit, job_begin_end               launcher/job_records.c, launcher/job.c
 *   lost       peer_close                                 launcher/job_records.c
 *   runner_end runner_note_end                            launcher/job.c
 *   signal     job_read_signal                            launcher/job.c
 *   over       job_is_over, processes_end                 launcher/job.c, launcher/processes.c
 *   kill       job_check_limits, job_kill                 launcher/job.c
 *   clean      supervisor_clean_up                        launcher/supervisor.c
 *
 * The kernel's part, PR_SET_PDEATHSIG and the end of a connection, happens in
 * the step in which a process dies.
 *
 * Checked: all processes end, whatever is killed, and before the supervisor
 * returns (then restart_run may start the ranks again); nothing waits for ever;
 * after one fault that is a rank's, that rank is the cause, and after one that is
 * the runner's no rank is. Compiled with -DMISTAKE=N one step is wrong,
 * and spin finds that:
 *
 *   1  a monitor does not wait for the launcher's leave: the runner ends the others first
 *   2  a rank that was told to end counts as a failure
 *   3  the job does not notice the end of a connection
 *   4  the supervisor does not end what the job has left
 *
 * Left out: time limits, but that of programs that do not end on SIGTERM; ranks
 * on other machines, whose records come through the runner.
 * SPDX-License-Identifier: MIT */
#ifndef MISTAKE
#define MISTAKE 0
#endif
#ifndef FAULTS
#define FAULTS 1
#endif
#define RANKS  3
#define RUNNER 8
#define NONE   9

bit program[RANKS], monitor[RANKS], runner, job, supervisor; /* it runs */
bit good[RANKS];      /* the program has ended with status 0 */
bit asked[RANKS];     /* it was told to end before it ended */
bit told[RANKS];      /* its monitor has reported that, or has tried to */
bit seen[RANKS];      /* the job knows how the rank has ended */
bit term[RANKS];      /* SIGTERM is on its way to it */
bit may_leave;        /* the job has said that monitors may exit */
bit ending;           /* the job's phase is no longer RUNNING */
bit deaf;             /* programs ignore SIGTERM */
byte cause = NONE, faults, victim = NONE;

#define ALL_TERM   term[0] = 1; term[1] = 1; term[2] = 1
#define ALL_GOOD   (good[0] && good[1] && good[2])
#define KNOWN(r)   (seen[r] || !monitor[r])
#define ALL_KNOWN  (KNOWN(0) && KNOWN(1) && KNOWN(2))
#define NO_MONITOR (!monitor[0] && !monitor[1] && !monitor[2])
#define NO_PROCESS (NO_MONITOR && !program[0] && !program[1] && !program[2] && !runner)
#define KILL_ALL \
    program[0] = 0; program[1] = 0; program[2] = 0; \
    monitor[0] = 0; monitor[1] = 0; monitor[2] = 0; runner = 0

proctype Program(byte r)
{
    do
    :: atomic { !program[r] -> break }
    :: atomic { program[r] -> program[r] = 0; good[r] = 1; break }
    od
}

proctype Monitor(byte r)
{
    do
    :: atomic { !monitor[r] -> break }
    :: atomic { monitor[r] && !program[r] && !told[r] ->
report:     told[r] = 1;
            if :: job -> seen[r] = 1 :: else fi
        }
#if MISTAKE == 1
    :: atomic { monitor[r] && told[r] ->
#else
    :: atomic { monitor[r] && told[r] && (good[r] || may_leave || !job) ->
#endif
leave:      monitor[r] = 0;
            break
        }
    :: atomic { monitor[r] && program[r] && (term[r] || !job || !runner) && !deaf ->
terminate:  program[r] = 0;
            asked[r] = 1
        }
    od
}

/* mpirun: ends all ranks when the process that it has started for one has ended
 * with a failure; ends when all have. */
proctype Runner()
{
    byte r;
    do
    :: atomic { !runner -> break }
    :: atomic { runner && NO_MONITOR -> runner = 0; break }
    :: atomic { runner && !job -> ALL_TERM; runner = 0; break }
    :: atomic {
        runner && ((!monitor[0] && !good[0]) || (!monitor[1] && !good[1]) || (!monitor[2] && !good[2])) &&
            !(term[0] && term[1] && term[2]) ->
        ALL_TERM
       }
    od
}

#if MISTAKE == 2
#define FAILED(r) (seen[r] && !good[r])
#else
#define FAILED(r) (seen[r] && !good[r] && !asked[r])
#endif

proctype Job()
{
    do
    :: atomic { !job -> break }
    :: atomic { job && !ending && (FAILED(0) || FAILED(1) || FAILED(2)) ->
failure:    ending = 1;
            if
            :: FAILED(0) -> cause = 0
            :: FAILED(1) -> cause = 1
            :: FAILED(2) -> cause = 2
            fi;
            ALL_TERM
        }
#if MISTAKE != 3
    :: atomic { job && !ending && ((!monitor[0] && !seen[0]) || (!monitor[1] && !seen[1]) || (!monitor[2] && !seen[2])) ->
lost:       ending = 1;
            ALL_TERM
        }
#endif
    :: atomic { job && !ending && !runner && !(ALL_GOOD && NO_MONITOR) ->
runner_end: ending = 1;
            ALL_TERM
        }
    :: atomic { job && !supervisor && !ending ->
signal:     ending = 1;
            ALL_TERM
        }
    :: atomic { job && ending && ALL_KNOWN ->
over:       may_leave = 1;
            KILL_ALL;
            job = 0;
            break
        }
    :: atomic { job && ending && deaf ->
kill:       KILL_ALL
        }
    :: atomic { job && !ending && !runner && ALL_GOOD && NO_MONITOR -> job = 0; break }
    od
}

proctype Supervisor()
{
    do
    :: atomic { !supervisor -> break }
    :: atomic { supervisor && !job ->
#if MISTAKE != 4
clean:      KILL_ALL;
#endif
            assert(NO_PROCESS);
            assert(ending || faults || ALL_GOOD);
            assert(!(faults == 1 && victim < RANKS) || cause == victim);
            assert(!(faults == 1 && victim == RUNNER) || cause == NONE);
            supervisor = 0;
            break
        }
    od
}

/* Which process, and that it runs. A kill of a monitor takes its program with it. */
proctype Fault()
{
    do
    :: faults < FAULTS ->
        atomic {
            if
            :: program[0] -> program[0] = 0; victim = 0
            :: program[1] -> program[1] = 0; victim = 1
            :: program[2] -> program[2] = 0; victim = 2
            :: monitor[1] -> monitor[1] = 0; program[1] = 0
            :: monitor[2] -> monitor[2] = 0; program[2] = 0
            :: runner -> runner = 0; victim = RUNNER
            :: job -> job = 0
            :: supervisor && job -> supervisor = 0
            :: else -> break
            fi;
            faults++
        }
    :: break
    od
}

init
{
    atomic {
        if
        :: deaf = 1
        :: deaf = 0
        fi;
        program[0] = 1; program[1] = 1; program[2] = 1;
        monitor[0] = 1; monitor[1] = 1; monitor[2] = 1;
        runner = 1; job = 1; supervisor = 1;
        run Program(0); run Program(1); run Program(2);
        run Monitor(0); run Monitor(1); run Monitor(2);
        run Runner(); run Job(); run Supervisor(); run Fault()
    }
}
