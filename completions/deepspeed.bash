# Completion for bash: options as the command's own --help says them, so that they are always those of the
# installed version; values where there are few; files otherwise.
# SPDX-License-Identifier: MIT

# _deepspeed_program: the program that `deepspeed [OPTION...] PROGRAM` starts, if it stands on the line already
_deepspeed_program()
{
    local i word help
    help=$("${COMP_WORDS[0]}" --help 2>/dev/null)
    for ((i = 1; i < COMP_CWORD; i++)); do
        word=${COMP_WORDS[i]}
        case $word in
        = | -*=*) ;;
        -*)
            # its value is the next word, or stands behind "="
            if [[ ${COMP_WORDS[i + 1]} == = ]]; then
                ((i += 2))
            elif grep -q -E -- "(^| )$word(=|, -.*=)" <<<"$help"; then
                ((i++))
            fi
            ;;
        *) type -P -- "$word" && return ;;
        esac
    done
}

_deepspeed()
{
    local command=$1 word=$2 before=$3 program=
    COMPREPLY=()
    [[ $word == = ]] && word= # --option=VALUE is three words, or two
    [[ $before == = ]] && before=${COMP_WORDS[COMP_CWORD - 2]}
    case $before in
    --launcher) mapfile -t COMPREPLY < <(compgen -W 'local ssh pdsh openmpi mpich mvapich slurm' -- "$word") && return ;;
    --log_level | --log-level) mapfile -t COMPREPLY < <(compgen -W 'debug info warning error critical' -- "$word") && return ;;
    --dtype) mapfile -t COMPREPLY < <(compgen -W 'fp32 fp16 bf16' -- "$word") && return ;;
    --stage) mapfile -t COMPREPLY < <(compgen -W '0 1 2 3' -- "$word") && return ;;
    --device) mapfile -t COMPREPLY < <(compgen -W 'cpu cuda' -- "$word") && return ;;
    esac
    if [[ ${command##*/} == deepspeed ]]; then program=$(_deepspeed_program); fi
    if [[ $word == -* ]]; then
        mapfile -t COMPREPLY < <(compgen -W "$("${program:-$command}" --help 2>/dev/null | grep -o -- '--[a-z][a-z0-9_-]*' | sort -u)" -- "$word")
    else
        mapfile -t COMPREPLY < <(compgen -f -- "$word")
        if [[ ${command##*/} == deepspeed && ! $program && $word && $before != -* ]]; then
            mapfile -t -O "${#COMPREPLY[@]}" COMPREPLY < <(compgen -c -- "$word")
        fi
    fi
}
complete -o filenames -o bashdefault -F _deepspeed deepspeed ds_report ds_ssh ds_bench ds_show ds_lm ds_to_universal zero_to_fp32 \
    cifar10_tutorial cifar10_deepspeed cifar10_ddp cifar10_dataparallel
