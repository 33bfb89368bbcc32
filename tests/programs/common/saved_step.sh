# tests/programs/common/saved_step.sh: what cifar_net_step_200.pth holds. The
# caller has sourced checks.sh; $show is ds_show, $here the folder of the
# scripts.
# SPDX-License-Identifier: MIT
check_saved_step()
{
    "$show" --json cifar_net_step_200.pth >held 2>err
    has held '"path": "/epoch", "value": 0, "class": "int"'
    has held '"path": "/loss", "value": 2\.[0-9]*, "class": "float"'
    has held '"path": "/model_state_dict/conv1.weight", "dtype": "float32", "shape": \[6, 3, 5, 5\]'
    has held '"path": "/optimizer_state_dict/state/9/momentum_buffer", "dtype": "float32", "shape": \[10\]'
    has held '"path": "/optimizer_state_dict/param_groups/0/momentum", "value": 0.9'
    torch=${DS_PEER_PYTHON:-python3}
    if ! "$torch" -c 'import torch' 2>/dev/null; then return; fi
    "$torch" "$here/common/peer_net.py" step cifar_net_step_200.pth >out 2>err
    if [ $? -eq 0 ]; then pass; else fail "PyTorch does not go on from cifar_net_step_200.pth"; fi
}
