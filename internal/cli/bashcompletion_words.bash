
    # The words are evaluated below. Pressing TAB must not run a part of the line, nor open a file that it redirects to.
    local typed=("${words[@]}") word redirects="" i
    words=()
    for ((i = 0; i < ${#typed[@]}; i++)); do
        word=${typed[i]}
        if [[ -n $redirects || $word =~ ^[0-9]*\&?[\<\>] ]]; then
            ((i < cword)) || return # files are completed
            if [[ -z $redirects && $i -gt 0 && ${typed[i - 1]} =~ ^[0-9]+$ && $COMP_LINE == *" ${typed[i - 1]}$word"* ]]; then
                words=("${words[@]:0:${#words[@]}-1}") # the number of the descriptor
            fi
            [[ -z $redirects && $word =~ [\<\>\&\|]$ ]] && redirects=yes || redirects=""
            continue
        fi
        if [[ $word == -- && $i -lt $cword && " ${words[*]} " == *" run "* ]]; then
            return # what follows is the command: files are completed
        fi
        if [[ $word == *[\`\(\<\>\|\&\;]* || $word == *$'\n'* ]]; then
            printf -v word %q "$word"
        fi
        words+=("$word")
    done
    cword=$((${#words[@]} - 1))
