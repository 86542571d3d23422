#!/bin/bash
# Asks the server's REST port whether the model can be used. With several models (MODEL_CONFIG_FILE) no name is known
# here, and that the server answers at all is what is asked.
set -eu
path=/v1/models
[[ -n ${MODEL_CONFIG_FILE:-} ]] || path+=/$MODEL_NAME
exec 3<>/dev/tcp/127.0.0.1/8501
printf 'GET %s HTTP/1.0\r\nHost: localhost\r\n\r\n' "$path" >&3
answer=
while read -r -t 5 line <&3; do
    answer+=$line$'\n'
done
answer+=${line:-}
if [[ -n ${MODEL_CONFIG_FILE:-} ]]; then
    [[ $answer == HTTP/* ]]
else
    [[ $answer == *'"state": "AVAILABLE"'* ]]
fi
