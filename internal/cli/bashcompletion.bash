    if declare -F _get_comp_words_by_ref >/dev/null 2>&1; then
        _get_comp_words_by_ref "$@" cur prev words cword
        return
    fi
    # Without the package: the words up to the cursor, joined again where bash has split them at = or :
    local line=${COMP_LINE:0:$COMP_POINT} blanks word last="" i
    words=()
    for ((i = 0; i <= COMP_CWORD; i++)); do
        blanks=${line%%[![:space:]]*}
        line=${line#"$blanks"}
        word=${COMP_WORDS[i]}
        ((i < COMP_CWORD)) || word=$line
        line=${line#"$word"}
        if [[ $i -gt 0 && -z $blanks && ($word == [=:]* || $last == *[=:]) ]]; then
            words[${#words[@]} - 1]+=$word
        else
            words+=("$word")
        fi
        last=$word
    done
    cword=$((${#words[@]} - 1))
    cur=${words[cword]}
    prev=""
    ((cword == 0)) || prev=${words[cword - 1]}
