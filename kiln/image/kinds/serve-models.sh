#!/bin/bash
# Starts the model server. In the environment:
#   MODEL_NAME, MODEL_BASE_PATH   which model, and the folder that its folder lies in
#   MODEL_CONFIG_FILE             instead of both: a file that lists several models
#   BATCHING_PARAMETERS_FILE      a file of batching parameters; requests are batched when it is given
# Further arguments are the server's own, and come last, so that they count.
set -eu
options=(--port=8500 --rest_api_port=8501)
if [[ -n ${MODEL_CONFIG_FILE:-} ]]; then
    options+=("--model_config_file=$MODEL_CONFIG_FILE")
else
    options+=("--model_name=$MODEL_NAME" "--model_base_path=$MODEL_BASE_PATH/$MODEL_NAME")
fi
if [[ -n ${BATCHING_PARAMETERS_FILE:-} ]]; then
    options+=(--enable_batching=true "--batching_parameters_file=$BATCHING_PARAMETERS_FILE")
fi
exec /opt/conda/bin/tensorflow_model_server "${options[@]}" "$@"
