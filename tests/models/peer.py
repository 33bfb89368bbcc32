"""tests/models/peer.py FOLDER: folders that ds_pretrained_save, ds_lora_save and ds_tokenizer_train wrote, read by
transformers, peft and tokenizers: logits, generated tokens and ids of texts are compared with what peer.c left in
NAME.safetensors and text.json.
Exits with 77 if one of the libraries is missing.
SPDX-License-Identifier: MIT"""
import json
import os
import sys
import warnings

try:
    import peft
    import tokenizers
    import torch
    import transformers
    from safetensors.torch import load_file
except ImportError as missing:
    print(f"skipped: {missing}")
    sys.exit(77)

warnings.filterwarnings("ignore")
transformers.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()
torch.set_num_threads(1)
folder = sys.argv[1]
failed = 0


def compare(what, got, want, tolerance):
    global failed
    off = (got.float() - want.float()).abs().max().item()
    print(f"{what}: logits differ by {off:.2g}")
    if not off <= tolerance:
        print(f"FAILED: {what}: expected at most {tolerance}")
        failed += 1


def logits(model, x):
    with torch.no_grad():
        return model.eval()(x["ids"]).logits


for name in sorted(n[:-12] for n in os.listdir(folder) if n.endswith(".safetensors")):
    x = load_file(f"{folder}/{name}.safetensors")
    of, _, kind = name.partition(".")
    dtype = torch.bfloat16 if kind == "bf16" else torch.float32
    path = f"{folder}/{of}" if kind == "adapter" else f"{folder}/{of}{'.' + kind if kind else ''}.model"
    if kind == "adapter":
        model, info = transformers.AutoModelForCausalLM.from_pretrained(
            f"{folder}/{of}.model", dtype=dtype, output_loading_info=True)
        model = peft.PeftModel.from_pretrained(model, f"{folder}/{of}.lora")
    else:
        model, info = transformers.AutoModelForCausalLM.from_pretrained(path, dtype=dtype, output_loading_info=True)
    for key in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        if info.get(key):
            print(f"FAILED: {name}: {key} {info[key]}")
            failed += 1
    off = max(0.2, 0.03 * x["logits"].abs().max().item()) if kind == "bf16" else 1e-4
    compare(name, logits(model, x), x["logits"], off)
    if "tokens" in x:
        new = x["tokens"].shape[1]
        greedy = transformers.GenerationConfig(do_sample=False, max_new_tokens=new, eos_token_id=None, pad_token_id=0)
        model.generation_config = greedy
        tokens = model.generate(x["ids"][:1], generation_config=greedy)[:, x["ids"].shape[1]:]
        same = int((tokens == x["tokens"]).long().cumprod(1).sum())
        print(f"{name}: {same} of {new} greedy tokens are equal, {len(set(tokens[0].tolist()))} are different ones")
        failed += same < new

tokenizer = tokenizers.Tokenizer.from_file(f"{folder}/tokenizer.json")
with open(f"{folder}/text.json") as f:
    for case in json.load(f):
        ids = tokenizer.encode(case["text"], add_special_tokens=False).ids
        if ids != case["ids"] or tokenizer.decode(ids) != case["text"]:
            print(f"FAILED: tokens of {case['text']!r}: {ids}, want {case['ids']}")
            failed += 1
print(f"transformers {transformers.__version__}, peft {peft.__version__}, tokenizers {tokenizers.__version__}")
sys.exit(failed > 0)
