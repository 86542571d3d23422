#!/bin/bash
# Asks the server's REST port whether the models can be used: that of MODEL_NAME, or all that MODEL_CONFIG_FILE names. A
# server that answers 404, since it does not know a model or has not loaded it yet, is not ready. The port is another
# one where the argument names it.
set -eu
models=()
if [[ -n ${MODEL_CONFIG_FILE:-} ]]; then
    # The file is protobuf's text format: a model's name is a key of its own, in either kind of quotes.
    named='(^|[[:space:]{,;])name[[:space:]]*:[[:space:]]*["'\'']([^"'\'']+)["'\''](.*)'
    while read -r line || [[ -n $line ]]; do
        line=${line%%#*}
        while [[ $line =~ $named ]]; do
            models+=("${BASH_REMATCH[2]}")
            line=${BASH_REMATCH[3]}
        done
    done <"$MODEL_CONFIG_FILE"
else
    models=("$MODEL_NAME")
fi
for model in "${models[@]}"; do
    exec 3<>"/dev/tcp/127.0.0.1/${1:-8501}"
    printf 'GET /v1/models/%s HTTP/1.0\r\nHost: localhost\r\n\r\n' "$model" >&3
    answer=
    while read -r -t 5 line <&3; do
        answer+=$line$'\n'
    done
    answer+=${line:-}
    exec 3>&-
    [[ $answer == HTTP/1.?\ 200* && $answer == *'"state": "AVAILABLE"'* ]] || {
        echo "models-are-served: $model: ${answer%%[$'\r\n']*}"
        exit 1
    }
done
