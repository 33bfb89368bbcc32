#!/usr/bin/env python3
"""tests/reference/make_lm_models.py FOLDER [NAME...]: small random models of transformers, and what they compute, for
lm_models.c and lm_rope.c: FOLDER/models/NAME, NAME.json, NAME.safetensors; FOLDER/rope/NAME.json, NAME.safetensors.
Needs torch and transformers. Values of float64 beside those of float32 give the tolerances.
SPDX-License-Identifier: MIT"""
import copy
import json
import math
import os
import sys

import torch
import transformers
from safetensors.torch import save_file

torch.set_num_threads(1)
transformers.logging.set_verbosity_error()
SIZES = dict(vocab_size=160, hidden_size=48, intermediate_size=64, num_hidden_layers=2, num_attention_heads=3,
             num_key_value_heads=1, pad_token_id=0, bos_token_id=1, eos_token_id=2)
MOE = dict(SIZES, hidden_size=32, intermediate_size=40, num_attention_heads=2)
TINY = dict(MOE, vocab_size=96, hidden_size=24, intermediate_size=32)
GEMMA = dict(SIZES, head_dim=16, num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=128)
OPT = dict(vocab_size=160, hidden_size=48, ffn_dim=96, num_hidden_layers=2, num_attention_heads=4, dropout=0.0,
           max_position_embeddings=128, pad_token_id=0, bos_token_id=1, eos_token_id=2)
NEOX = dict(vocab_size=160, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
            max_position_embeddings=128, pad_token_id=0, bos_token_id=1, eos_token_id=2)
FACTORS = dict(short_factor=[1.0, 1.05, 1.1, 1.3, 1.6, 2.0], long_factor=[1.0, 1.2, 1.9, 2.8, 3.9, 5.5])
V4 = ("architectures", "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
      "num_key_value_heads", "head_dim", "max_position_embeddings", "rms_norm_eps", "pad_token_id", "bos_token_id",
      "eos_token_id", "sliding_window", "query_pre_attn_scalar", "attn_logit_softcapping", "final_logit_softcapping",
      "original_max_position_embeddings", "ffn_dim", "dropout", "do_layer_norm_before", "word_embed_proj_dim",
      "activation_function", "use_parallel_residual", "attention_bias", "hidden_act", "layer_norm_eps", "enable_bias",
      "moe_intermediate_size", "shared_expert_intermediate_size", "num_experts_per_tok", "norm_topk_prob",
      "mlp_only_layers", "decoder_sparse_step", "qkv_bias",
      "layer_norm_elementwise_affine", "_remove_final_layer_norm", "init_std", "tie_word_embeddings")
# class, arguments of its configuration, keys of version 4 in place of rope_parameters and layer_types
MODELS = {
    "phi3-longrope": ("Phi3", dict(
        SIZES, max_position_embeddings=120, original_max_position_embeddings=24,
        rope_parameters=dict(FACTORS, rope_type="longrope", rope_theta=10000.0, partial_rotary_factor=0.75)),
        dict(rope_scaling=dict(FACTORS, type="su"), rope_theta=10000.0, partial_rotary_factor=0.75)),
    "gemma": ("Gemma", dict(GEMMA, attention_bias=True), dict(hidden_act="gelu", attention_bias=True)),
    "gemma2": ("Gemma2", dict(GEMMA, sliding_window=8, query_pre_attn_scalar=24, attn_logit_softcapping=3.0,
                              final_logit_softcapping=20.0), dict(hidden_act="relu")),
    "gemma3": ("Gemma3", dict(GEMMA, sliding_window=8, query_pre_attn_scalar=24, final_logit_softcapping=15.0,
                              layer_types=["sliding_attention", "full_attention"],
                              rope_parameters=dict(
                                  sliding_attention=dict(rope_type="default", rope_theta=100.0),
                                  full_attention=dict(rope_type="linear", rope_theta=1e6, factor=2.0))),
               dict(sliding_window_pattern=2, rope_local_base_freq=100.0,
                    rope_scaling=dict(rope_type="linear", factor=2.0))),
    "mixtral": ("Mixtral", dict(MOE, num_local_experts=4, num_experts_per_tok=2, max_position_embeddings=64),
                dict(num_local_experts=4, rope_theta=1e6)),
    "qwen2-moe": ("Qwen2Moe", dict(MOE, num_experts=5, num_experts_per_tok=3, moe_intermediate_size=24,
                                   shared_expert_intermediate_size=40, num_hidden_layers=3, use_sliding_window=True,
                                   sliding_window=8, max_window_layers=2, mlp_only_layers=[1]),
                  dict(use_sliding_window=True, num_experts=5, max_window_layers=2)),
    "qwen2-moe-balance": ("Qwen2Moe", dict(TINY, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=16,
                                           shared_expert_intermediate_size=24, num_hidden_layers=3,
                                           mlp_only_layers=[1], output_router_logits=True, router_aux_loss_coef=0.4),
                          dict(num_experts=4, output_router_logits=True, router_aux_loss_coef=0.4)),
    "qwen3-moe": ("Qwen3Moe", dict(MOE, head_dim=20, num_experts=6, num_experts_per_tok=2, moe_intermediate_size=24,
                                   norm_topk_prob=True, decoder_sparse_step=2), dict(num_experts=6)),
    "smollm3": ("SmolLM3", dict(TINY, num_hidden_layers=3, no_rope_layers=[1, 0, 1], use_sliding_window=True,
                                sliding_window=8, mlp_bias=True),
                dict(rope_theta=2000000.0, no_rope_layers=[1, 0, 1], use_sliding_window=True, mlp_bias=True)),
    "olmo2": ("Olmo2", dict(TINY, max_position_embeddings=64), dict(rope_theta=10000.0)),
    "olmo3": ("Olmo3", dict(TINY, num_hidden_layers=4, intermediate_size=24, sliding_window=8, max_position_embeddings=64,
                            rope_parameters=dict(
                                sliding_attention=dict(rope_type="default", rope_theta=500000.0),
                                full_attention=dict(rope_type="yarn", rope_theta=500000.0, factor=4.0,
                                                    original_max_position_embeddings=16))),
              dict(rope_theta=500000.0, rope_scaling=dict(rope_type="yarn", factor=4.0,
                                                          original_max_position_embeddings=16))),
    "granite": ("Granite", dict(TINY, embedding_multiplier=12.0, attention_multiplier=0.2, residual_multiplier=0.22,
                                logits_scaling=4.0, attention_bias=True),
                dict(embedding_multiplier=12.0, attention_multiplier=0.2, residual_multiplier=0.22,
                     logits_scaling=4.0, attention_bias=True, rope_theta=10000.0)),
    "opt": ("OPT", OPT, dict(dropout=0.0)),
    "opt-350m": ("OPT", dict(OPT, do_layer_norm_before=False, word_embed_proj_dim=24, activation_function="gelu",
                             tie_word_embeddings=False), dict()),
    "neox": ("GPTNeoX", NEOX, dict(rotary_pct=0.25, rotary_emb_base=10000)),
    "neox-serial": ("GPTNeoX", dict(NEOX, use_parallel_residual=False, hidden_act="gelu_fast", attention_bias=False,
                                    rope_parameters=dict(rope_type="linear", factor=2.0, rope_theta=1000.0,
                                                         partial_rotary_factor=0.5)),
                    dict(rotary_pct=0.5, rotary_emb_base=1000, rope_scaling=dict(type="linear", factor=2.0))),
}
LONGROPE = dict(rope_type="longrope", short_factor=[1.0, 1.05, 1.1, 1.2, 1.3, 1.5, 1.7, 2.0],
                long_factor=[1.0, 1.2, 1.5, 1.9, 2.4, 3.2, 4.4, 5.5], original_max_position_embeddings=50)
LLAMA = dict(architectures=["LlamaForCausalLM"], vocab_size=256, hidden_size=48, intermediate_size=80,
             num_hidden_layers=2, num_attention_heads=3, num_key_value_heads=1, max_position_embeddings=64,
             rms_norm_eps=1e-6, tie_word_embeddings=True)
# base, configuration, prompt
ROPES = {
    "dynamic": ("llama-rope3", dict(LLAMA, rope_parameters=dict(rope_type="dynamic", rope_theta=1e4, factor=3.0)), 40),
    "dynamic-v4": ("llama-rope3", dict(LLAMA, rope_theta=1e3, rope_scaling=dict(type="dynamic", factor=2.0),
                                       max_position_embeddings=30), 40),
    "phi3-window": ("phi3-longrope", dict(
        SIZES, architectures=["Phi3ForCausalLM"], sliding_window=8, rope_parameters=dict(
            rope_type="default", rope_theta=10000.0, partial_rotary_factor=0.5)), 12),
    "phi3-window-longrope": ("phi3-longrope", dict(
        SIZES, architectures=["Phi3ForCausalLM"], sliding_window=20, max_position_embeddings=120,
        original_max_position_embeddings=50, rope_parameters=dict(
            FACTORS, rope_type="longrope", partial_rotary_factor=0.75, attention_factor=1.3)), 40),
    "longrope": ("llama-rope3", dict(LLAMA, rope_scaling=LONGROPE), 40),
    "gemma3-longrope": ("gemma3", dict(
        GEMMA, architectures=["Gemma3ForCausalLM"], sliding_window=8, query_pre_attn_scalar=16,
        layer_types=["sliding_attention", "full_attention"], rope_parameters=dict(
            sliding_attention=dict(rope_type="default", rope_theta=1e4),
            full_attention=dict(LONGROPE, rope_theta=1e5, factor=4.0))), 40),
    "mistral-layers": ("mistral-window", dict(
        architectures=["MistralForCausalLM"], vocab_size=200, hidden_size=48, intermediate_size=88,
        num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=16, max_position_embeddings=128,
        sliding_window=8, layer_types=["full_attention", "sliding_attention"]), 30),
    "gemma3-pattern": ("gemma3", dict(
        GEMMA, architectures=["Gemma3ForCausalLM"], sliding_window=8, query_pre_attn_scalar=16, rope_theta=1e5,
        attn_logit_softcapping=2.0), 30),
}


def integers(generator, *shape, vocab):
    return torch.randint(0, vocab, shape, generator=generator)


def model_new(kind, arguments, seed):
    config = getattr(transformers, "Gemma3TextConfig" if kind == "Gemma3" else kind + "Config")(**arguments)
    config._attn_implementation = config._experts_implementation = "eager"
    model = getattr(transformers, kind + "ForCausalLM")(config).float().eval()
    g = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, p in model.named_parameters():
            noise = torch.randn(p.shape, generator=g)
            centre = 1.0 if "norm" in name and not kind.startswith("Gemma") else 0.0
            p.copy_(centre + (0.2 if p.dim() == 1 else 1.6 / math.sqrt(p.shape[-1])) * noise)
            # tokens that differ clearly, and are not the last one again
            if "lm_head" in name or "embed_out" in name:
                p.mul_(2.5)
            if "embed_positions" in name and config.do_layer_norm_before:
                p.mul_(3)
            if kind.startswith("Gemma") and name == "model.norm.weight":
                p.add_(3 if kind == "Gemma" else 8)
            if kind.startswith("Gemma") and "embed" in name:
                p.mul_(0.5 if kind == "Gemma" else 0.15)
    return model


def greedy(model, ids, new, mask=None, eos=None):
    """Tokens, and the least distance of a chosen logit from the next one."""
    config = transformers.GenerationConfig(do_sample=False, max_new_tokens=new, eos_token_id=eos, pad_token_id=0,
                                           output_logits=True, return_dict_in_generate=True,
                                           disable_compile=True)
    model.generation_config = config
    if hasattr(model.config, "output_router_logits"):
        model.config.output_router_logits = False  # with it, generation fails in transformers 5.24
    mask = torch.ones_like(ids) if mask is None else mask
    out = model.generate(ids, attention_mask=mask, generation_config=config)
    top = torch.stack(out.logits).topk(2).values
    return out.sequences[:, ids.shape[1]:], (top[..., 0] - top[..., 1]).min().item()


def generation(model, g, vocab, new=48):
    prompts = [integers(g, n, vocab=vocab - 3) + 3 for n in (5, 9, 14)]
    cases, gaps = [], []
    for p in prompts:
        tokens, gap = greedy(model, p[None], new)
        cases.append(dict(prompt=p.tolist(), generated=tokens[0].tolist(), smallest_gap=gap))
        gaps.append(gap)
    ids = torch.stack([torch.cat([torch.zeros(14 - len(p), dtype=torch.long), p]) for p in prompts])
    mask = torch.stack([(torch.arange(14) >= 14 - len(p)).long() for p in prompts])
    tokens, gap = greedy(model, ids, new, mask)
    gaps.append(gap)
    eos = [int(tokens[0, 4]), int(tokens[1, 11])]
    stopped, _ = greedy(model, ids, new, mask, eos)
    result = dict(new_tokens=new, cases=cases,
                  left_padded=dict(pad_token_id=0, input_ids=ids.tolist(), attention_mask=mask.tolist(),
                                   generated=tokens.tolist()),
                  left_padded_eos=dict(eos_token_id=eos, pad_token_id=0, generated=stopped.tolist()))
    return result, min(gaps)


def rates(steps, warmup, peak):
    return [peak * i / warmup if i < warmup else peak * 0.5 * (1 + math.cos(math.pi * (i - warmup) / (steps - warmup)))
            for i in range(steps)]


def train(model, batches, lr):
    model = copy.deepcopy(model)
    decay = [p for p in model.parameters() if p.dim() > 1]
    plain = [p for p in model.parameters() if p.dim() == 1]
    optim = torch.optim.AdamW([dict(params=decay, weight_decay=0.1), dict(params=plain, weight_decay=0.0)], lr=1e-3,
                              betas=(0.9, 0.95), eps=1e-8)
    losses, norms = [], []
    for i, rate in enumerate(lr):
        ids, labels = batches[i % len(batches)]
        loss = model(input_ids=ids, labels=labels).loss
        optim.zero_grad()
        loss.backward()
        norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0).item())
        losses.append(loss.item())
        for group in optim.param_groups:
            group["lr"] = rate
        optim.step()
    return losses, norms, stored(model, dict(model.named_parameters()))


def largest(a, b):
    return max(abs(x - y) for x, y in zip(a, b))


def training(model, g, vocab):
    batches = []
    for _ in range(4):
        ids = integers(g, 2, 16, vocab=vocab)
        ids[1, 5] = 0  # padding has no gradient as an input
        labels = ids.clone()
        labels[0, :3] = labels[1, :2] = -100
        batches.append((ids, labels))
    lr = rates(20, 4, 0.004)
    losses, norms, weights = train(model, batches, lr)
    losses64, norms64, weights64 = train(copy.deepcopy(model).double(), batches, lr)
    probe, tolerance = {}, {}
    for name, p in weights.items():
        at = [p.numel() * k // 8 for k in range(8)]
        probe[name] = dict(shape=list(p.shape), at=at, values=[p.detach().flatten()[k].item() for k in at])
        tolerance[name] = max(1e-5, 10 * (p - weights64[name]).abs().max().item())
    relative = max(abs(a - b) / b for a, b in zip(norms, norms64))
    return dict(lr=lr, betas=[0.9, 0.95], eps=1e-8, weight_decay=0.1, steps=20, max_norm=1.0,
                batches=[dict(input_ids=i.tolist(), labels=l.tolist()) for i, l in batches], loss=losses,
                grad_norm=norms, final_probe=probe,
                tolerance=dict(loss=max(2e-5, 10 * largest(losses, losses64)), grad_norm_relative=max(1e-5, 10 * relative),
                               weights=tolerance))


def stored(model, tensors):
    """As files have them: transformers calls the head of GPT-NeoX otherwise, and joins experts."""
    kind, out = model.config.model_type, {}
    names = ("w1", "w3", "w2") if kind == "mixtral" else ("gate_proj", "up_proj", "down_proj")
    for name, x in tensors.items():
        if kind == "gpt_neox":
            name = name.replace("lm_head", "embed_out")
        if kind == "mixtral":
            name = name.replace(".mlp.", ".block_sparse_moe.")
        begin, _, part = name.partition(".experts.")
        if not part:
            out[name] = x
        for e in range(x.shape[0] if part else 0):
            both = zip(names[:2], x[e].chunk(2)) if part == "gate_up_proj" else [(names[2], x[e])]
            out.update({f"{begin}.experts.{e}.{n}.weight": y for n, y in both})
    return out


def backward(model, ids, labels):
    model.zero_grad()
    out = model(input_ids=ids, labels=labels)
    out.loss.backward()
    grads = stored(model, {n: p.grad.clone() for n, p in model.named_parameters()})
    norm = math.sqrt(sum((x.double() ** 2).sum().item() for x in grads.values()))
    return out.logits.detach(), out.loss.item(), norm, grads


def model_write(folder, name):
    kind, arguments, v4 = MODELS[name]
    vocab = arguments["vocab_size"]
    for seed in range(400):
        model = model_new(kind, arguments, seed)
        g = torch.Generator().manual_seed(1000 + seed)
        made, gap = generation(model, g, vocab)
        if gap > 0.003 and len(set(made["left_padded"]["generated"][0])) > 8:
            break
        print(f"{name}: seed {seed}: gap {gap:.4f}, {len(set(made['left_padded']['generated'][0]))} tokens", flush=True)
    if "output_router_logits" in arguments:
        model.config.output_router_logits = True
    ids = integers(g, 2, 30, vocab=vocab)  # beyond the window, and the original context
    labels = ids.clone()
    labels[0, 0] = -100
    labels[1, :3] = labels[1, -2:] = -100
    logits, loss, norm, grads = backward(model, ids, labels)
    logits64, loss64, norm64, grads64 = backward(copy.deepcopy(model).double(), ids, labels)
    fused = [n for n in grads if "qkv_proj" in n or "k_proj" in n or "query_key_value" in n][:1] + [
        n for n in grads if n.endswith("embed_tokens.weight") or "embed_in" in n]
    off = (logits - logits64).abs().max().item()
    off_grad = max((grads[n] - grads64[n]).abs().max().item() for n in fused)
    config_v4 = {k: v for k, v in dict(model.config.to_dict(), **v4).items() if k in V4 or k in v4}
    config_v4["architectures"] = [kind + "ForCausalLM"]
    result = dict(family="lm/models", id=name, folder=name, tensors=name + ".safetensors",
                  architecture=kind + "ForCausalLM", parameters=sum(p.numel() for p in model.parameters()), seed=seed,
                  input_ids=ids.tolist(), labels=labels.tolist(), loss=loss, grad_norm=norm,
                  grad_norms={n: x.norm().item() for n, x in grads.items()}, full_gradients=fused, smallest_gap=gap,
                  generation=made, training=training(model, g, vocab), config_v4=name + ".config_v4.json",
                  made_by=f"torch {torch.__version__}, transformers {transformers.__version__}",
                  tolerance=dict(logits=max(2e-5, 10 * off), loss=max(2e-6, 5e-7 * loss, 10 * abs(loss - loss64)),
                                 grad=max(2e-6, 10 * off_grad),
                                 grad_norm_relative=max(1e-5, 10 * abs(norm - norm64) / norm64)))
    os.makedirs(f"{folder}/models", exist_ok=True)
    model.generation_config = transformers.GenerationConfig(bos_token_id=1, eos_token_id=2, pad_token_id=0)
    model.save_pretrained(f"{folder}/models/{name}")
    with open(f"{folder}/models/{name}.config_v4.json", "w") as f:
        json.dump(config_v4, f, indent=1)
    with open(f"{folder}/models/{name}.json", "w") as f:
        json.dump(result, f)
    tensors = {"grad." + n: grads[n] for n in fused}
    save_file(dict(tensors, logits=logits), f"{folder}/models/{name}.safetensors")
    print(f"{name}: seed {seed}, gap {gap:.3f}, tokens {len(set(made['cases'][0]['generated']))}")


def rope_write(folder, name):
    base, config, prompt = ROPES[name]
    kind = config["architectures"][0]
    if kind.startswith("Mistral") and "layer_types" in config:
        kind = "MinistralForCausalLM"  # as AutoConfig
    cls = getattr(transformers, "Gemma3TextConfig" if kind.startswith("Gemma3") else kind.replace("ForCausalLM", "Config"))
    def load():
        c = cls(**{k: copy.deepcopy(v) for k, v in config.items() if k != "architectures"})
        c._attn_implementation = "eager"
        return getattr(transformers, kind).from_pretrained(f"{folder}/models/{base}", config=c, dtype=torch.float32)

    for seed in range(200):
        g = torch.Generator().manual_seed(seed)
        ids = integers(g, 1, 96, vocab=config["vocab_size"] - 3) + 3
        tokens, gap = greedy(load().eval(), ids[:, :prompt], 40)
        if gap > 0.006:
            break
    logits, loss, norm, _ = backward(load().eval(), ids, ids)
    logits64, loss64, norm64, _ = backward(load().eval().double(), ids, ids)
    result = dict(family="lm/rope", id=name, base=f"../models/{base}", tensors=f"{name}.safetensors", config=config,
                  input_ids=ids.tolist(), logits_are_of="the last 16 positions", loss=loss, grad_norm=norm,
                  prompt=prompt, generated=tokens[0].tolist(), smallest_gap=gap,
                  made_by=f"torch {torch.__version__}, transformers {transformers.__version__}",
                  tolerance=dict(logits=max(5e-5, 10 * (logits - logits64).abs().max().item()),
                                 loss=max(1e-5, 10 * abs(loss - loss64)),
                                 grad_norm_relative=max(1e-4, 10 * abs(norm - norm64) / norm64)))
    os.makedirs(f"{folder}/rope", exist_ok=True)
    with open(f"{folder}/rope/{name}.json", "w") as f:
        json.dump(result, f)
    save_file(dict(logits=logits[0, -16:].contiguous()), f"{folder}/rope/{name}.safetensors")
    print(f"{name}: seed {seed}, gap {gap:.3f}")


names = sys.argv[2:]
for each in MODELS:
    if not names or each in names:
        model_write(sys.argv[1], each)
for each in ROPES:
    if not names or each in names:
        rope_write(sys.argv[1], each)
