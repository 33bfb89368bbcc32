# Completion for bash: options as the command's own --help says them, so that they are always those of the
# installed version; values where there are few; files otherwise.
# SPDX-License-Identifier: MIT
_deepspeed()
{
    local command=$1 word=$2 before=$3 i program=
    COMPREPLY=()
    case $before in
    --launcher) mapfile -t COMPREPLY < <(compgen -W 'local ssh pdsh openmpi mpich mvapich slurm' -- "$word") && return ;;
    --log_level | --log-level) mapfile -t COMPREPLY < <(compgen -W 'debug info warning error critical' -- "$word") && return ;;
    --dtype) mapfile -t COMPREPLY < <(compgen -W 'fp32 fp16 bf16' -- "$word") && return ;;
    --stage) mapfile -t COMPREPLY < <(compgen -W '0 1 2 3' -- "$word") && return ;;
    --device) mapfile -t COMPREPLY < <(compgen -W 'cpu cuda' -- "$word") && return ;;
    esac
    # after `deepspeed PROGRAM` come the program's options
    if [[ ${command##*/} == deepspeed ]]; then
        for ((i = 1; i < COMP_CWORD; i++)); do
            if [[ ${COMP_WORDS[i]} != -* && -x ${COMP_WORDS[i]} && ! -d ${COMP_WORDS[i]} ]]; then
                program=${COMP_WORDS[i]}
                break
            fi
        done
    fi
    if [[ $word == -* ]]; then
        mapfile -t COMPREPLY < <(compgen -W "$("${program:-$command}" --help 2>/dev/null | grep -o -- '--[a-z][a-z0-9_-]*' | sort -u)" -- "$word")
    else
        mapfile -t COMPREPLY < <(compgen -f -- "$word")
    fi
}
complete -o filenames -o bashdefault -F _deepspeed deepspeed ds_report ds_ssh ds_bench ds_show zero_to_fp32 \
    cifar10_tutorial cifar10_deepspeed cifar10_ddp cifar10_dataparallel
