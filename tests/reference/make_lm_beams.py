#!/usr/bin/env python3
"""tests/reference/make_lm_beams.py FOLDER: beam search and beam sampling of transformers with the models of
FOLDER/models (make_lm_models.py), for lm_beams.c: FOLDER/beams/NAME.json. torch.multinomial is replaced by a draw with
the library's random words, so that drawn tokens can be compared. Prompts are those of which the float32 model, the
float64 model and one with slightly other weights make the same tokens. Needs torch and transformers.
SPDX-License-Identifier: MIT"""
import copy
import json
import math
import os
import sys

import torch
import transformers

torch.set_num_threads(1)
transformers.logging.set_verbosity_error()
NEW = 16
WORD = 2**32 - 1
draw = dict(seed=0, step=0, scores=None)
softmax = torch.nn.functional.softmax

# beams, sequences; others have the names of GenerationConfig; "stops": how many eos ids; "ends": lm_beams.c's
# stopping_criteria
CASES = [
    dict(num_beams=4, num_return_sequences=1, stops=1),
    dict(num_beams=3, num_return_sequences=3, stops=2, early_stopping=True, length_penalty=0.0),
    dict(num_beams=5, num_return_sequences=2, stops=1, early_stopping="never", length_penalty=2.0, min_new_tokens=4),
    dict(num_beams=2, num_return_sequences=2, stops=3, length_penalty=-1.0, repetition_penalty=1.3),
    dict(num_beams=4, num_return_sequences=4, stops=0, ends=11, no_repeat_ngram_size=2),
    dict(num_beams=3, num_return_sequences=2, stops=1, do_sample=True, temperature=1.4, top_k=7),
    dict(num_beams=2, num_return_sequences=2, stops=2, do_sample=True, top_k=0, top_p=0.8, min_p=0.02),
]


def philox(seed, offset, i):
    """Word i of a stream: src/base/philox.h."""
    at, key = offset + i // 4, [seed & WORD, seed >> 32]
    c = [at & WORD, at >> 32, 0, 0]
    for _ in range(10):
        a, b = 0xd2511f53 * c[0], 0xcd9e8d57 * c[2]
        c = [(b >> 32) ^ c[1] ^ key[0], b & WORD, (a >> 32) ^ c[3] ^ key[1], a & WORD]
        key = [(key[0] + 0x9e3779b9) & WORD, (key[1] + 0xbb67ae85) & WORD]
    return c[i % 4]


def noted_softmax(x, *args, **options):
    if x.dim() == 2:
        draw["scores"] = x
    return softmax(x, *args, **options)


def multinomial(probs, num_samples):
    """Without replacement: the largest of score - log(-log(u))."""
    taken = []
    for row, scores in enumerate(draw["scores"].tolist()):
        keys = [-math.inf if s == -math.inf else s - math.log(-math.log(
            (philox(draw["seed"], row << 32, draw["step"] * len(scores) + i) + 0.5) / 2**32)) for i, s in enumerate(scores)]
        taken.append(sorted(range(len(keys)), key=lambda i: -keys[i])[:num_samples])
    draw["step"] += 1
    return torch.tensor(taken)


class Ends(transformers.StoppingCriteria):
    def __init__(self, by, prompt):
        self.by, self.prompt = by, prompt

    def __call__(self, ids, scores, **_):
        return (ids[:, -1] * 31 + (ids.shape[1] - self.prompt) * 7) % self.by == 0


def generate(model, case, ids, mask, stops, seed):
    options = {k: v for k, v in case.items() if k not in ("stops", "ends")}
    config = transformers.GenerationConfig(
        max_new_tokens=NEW, eos_token_id=stops or None, pad_token_id=3, output_scores=True, return_dict_in_generate=True,
        disable_compile=True, **options)
    draw.update(seed=seed, step=0)
    ends = [Ends(case["ends"], ids.shape[1])] if "ends" in case else []
    with torch.no_grad():
        out = model.generate(ids, attention_mask=mask, generation_config=config,
                             stopping_criteria=transformers.StoppingCriteriaList(ends))
    lengths = (out.beam_indices >= 0).sum(-1).tolist()
    rows = [row[ids.shape[1]:][:n].tolist() for row, n in zip(out.sequences, lengths)]
    return rows, out.sequences_scores.tolist()


def models(folder, name):
    model = transformers.AutoModelForCausalLM.from_pretrained(f"{folder}/models/{name}", dtype=torch.float32,
                                                              attn_implementation="eager").eval()
    model.generation_config = transformers.GenerationConfig()
    if hasattr(model.config, "output_router_logits"):
        model.config.output_router_logits = False
    others = [copy.deepcopy(model), copy.deepcopy(model)]
    g = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for p in [p for other in others for p in other.parameters()]:
            p.mul_(1 + 2e-5 * torch.randn(p.shape, generator=g))
    return [model, *others]


def case_make(three, vocab, number):
    case = CASES[number]
    for seed in range(200):
        g = torch.Generator().manual_seed(1000 * number + seed)
        rows = 1 + number % 2
        ids = torch.randint(4, vocab, (rows, 6), generator=g)
        mask = torch.ones_like(ids)
        if rows > 1 and "repetition_penalty" not in case:  # padding does not count in ours
            ids[0, :2] = mask[0, :2] = 0
        stops = torch.randint(4, vocab, (case["stops"],), generator=g).tolist()
        plain = generate(three[0], dict(case, stops=0), ids, mask, [], seed)[0]
        stops[:1] = [plain[0][min(5, len(plain[0]) - 1)]] if stops else []
        made = [generate(m, case, ids, mask, stops, seed) for m in three]
        if all(m[0] == made[0][0] for m in made):
            options = {k: v for k, v in case.items() if k != "stops"}
            return dict(options, input_ids=ids.tolist(), attention_mask=mask.tolist(), eos_token_id=stops, seed=seed,
                        generated=made[0][0], scores=made[0][1])
    sys.exit("no prompt is far from a tie")


def main(folder):
    torch.multinomial, torch.nn.functional.softmax = multinomial, noted_softmax
    os.makedirs(f"{folder}/beams", exist_ok=True)
    for name in sorted(os.listdir(f"{folder}/models")):
        if not os.path.isdir(f"{folder}/models/{name}"):
            continue
        three = models(folder, name)
        cases = [case_make(three, three[0].config.vocab_size, i) for i in range(len(CASES))]
        result = dict(family="lm/beams", id=name, base=f"../models/{name}", new_tokens=NEW, cases=cases,
                      made_by=f"torch {torch.__version__}, transformers {transformers.__version__}")
        with open(f"{folder}/beams/{name}.json", "w") as f:
            json.dump(result, f)
        print(name, [len(c["generated"][0]) for c in cases], flush=True)


main(sys.argv[1])
