#!/usr/bin/env python3
"""Make a model directory that serving engines load offline: tokenizer, configs and, if asked, random weights.

    tiny_model.py OUT --shape llama-8b            configs only, for engines that simulate the model
    tiny_model.py OUT --shape mid|kv --weights    random float32 weights (needs numpy and safetensors)

Only the serving behaviour counts (KV bytes a token, queueing), not the words. Every ordinary token id decodes to one
or more ASCII characters, so that a stream never has an event without text.

KV bytes a token = layers * 2 * kv_heads * head_dim * bytes an element:
llama-8b 128 KiB in bfloat16, mid 8 KiB and kv 64 KiB in float32.
"""

import argparse
import json
from itertools import product
from pathlib import Path

SHAPES = {
    "llama-8b": {"layers": 32, "hidden": 4096, "heads": 32, "kv_heads": 8, "head_dim": 128, "inter": 14336},
    "mid": {"layers": 4, "hidden": 256, "heads": 4, "kv_heads": 4, "head_dim": 64, "inter": 512},
    "kv": {"layers": 8, "hidden": 256, "heads": 8, "kv_heads": 8, "head_dim": 128, "inter": 512},
}
SPECIAL = ["<|bos|>", "<|eos|>", "<|unk|>", "<|turn|>"]
VOCAB = 4096
LETTERS = "etaoinshrdlucmfwypvbgkjqxz"  # by frequency, so that common pairs become tokens first
CHAT_TEMPLATE = (
    "{% for m in messages %}<|turn|>{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}<|turn|>assistant: {% endif %}"
)


def tokenizer() -> dict:
    """Byte-pair encoding over ASCII: 4 specials, 128 characters, then letter pairs and triples up to VOCAB."""
    # The byte-level alphabet writes an unprintable byte as the character 256 above it (a space becomes U+0120); DEL is
    # number 33 of those bytes.
    alphabet = [chr(b) if 32 < b < 127 else chr(256 + (b if b < 127 else 33)) for b in range(128)]

    def likely(n: int) -> list[str]:
        return sorted(("".join(p) for p in product(LETTERS, repeat=n)), key=lambda s: sum(map(LETTERS.index, s)))

    merged = (likely(2) + likely(3))[: VOCAB - len(SPECIAL) - len(alphabet)]
    vocab = {text: i for i, text in enumerate(SPECIAL + alphabet + merged)}
    added = {"special": True, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": i, "content": text, **added} for i, text in enumerate(SPECIAL)],
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": None,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": "<|unk|>",
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": vocab,
            "merges": [[text[:-1], text[-1]] for text in merged],
        },
    }


def configs(shape: dict, max_len: int, dtype: str) -> dict[str, dict]:
    """The three small files beside tokenizer.json."""
    ids = {"bos_token_id": 0, "eos_token_id": 1}
    return {
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": SPECIAL[0],
            "eos_token": SPECIAL[1],
            "unk_token": SPECIAL[2],
            "model_max_length": max_len,
            "chat_template": CHAT_TEMPLATE,
        },
        "generation_config.json": ids,
        "config.json": {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "hidden_act": "silu",
            "hidden_size": shape["hidden"],
            "intermediate_size": shape["inter"],
            "num_hidden_layers": shape["layers"],
            "num_attention_heads": shape["heads"],
            "num_key_value_heads": shape["kv_heads"],
            "head_dim": shape["head_dim"],
            "vocab_size": VOCAB,
            "max_position_embeddings": max_len,
            "rms_norm_eps": 1e-5,
            "rope_theta": 500000.0,
            "torch_dtype": dtype,
            "tie_word_embeddings": False,
            **ids,
        },
    }


def weights(shape: dict) -> dict:
    """Random matrices of variance 1/inputs, the same ones on every machine (seed 0)."""
    import numpy as np

    rng = np.random.default_rng(0)
    hidden, inter = shape["hidden"], shape["inter"]
    q, kv = shape["heads"] * shape["head_dim"], shape["kv_heads"] * shape["head_dim"]
    sizes = {"model.embed_tokens": (VOCAB, hidden), "lm_head": (VOCAB, hidden), "model.norm": (hidden,)}
    for n in range(shape["layers"]):
        layer = f"model.layers.{n}"
        sizes |= {
            f"{layer}.input_layernorm": (hidden,),
            f"{layer}.post_attention_layernorm": (hidden,),
            f"{layer}.self_attn.q_proj": (q, hidden),
            f"{layer}.self_attn.k_proj": (kv, hidden),
            f"{layer}.self_attn.v_proj": (kv, hidden),
            f"{layer}.self_attn.o_proj": (hidden, q),
            f"{layer}.mlp.gate_proj": (inter, hidden),
            f"{layer}.mlp.up_proj": (inter, hidden),
            f"{layer}.mlp.down_proj": (hidden, inter),
        }
    made = {}
    for name, size in sizes.items():
        values = np.ones(size) if len(size) == 1 else rng.normal(0, size[1] ** -0.5, size)
        made[f"{name}.weight"] = values.astype(np.float32)
    # The logits of the specials are 0 and those of the others reach 25 and more: the model never says a special.
    made["lm_head.weight"] *= 8
    made["lm_head.weight"][: len(SPECIAL)] = 0
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--shape", choices=SHAPES, required=True)
    parser.add_argument("--weights", action="store_true")
    parser.add_argument("--max-len", type=int, help="default 8192 with weights, 131072 without")
    args = parser.parse_args()
    shape = SHAPES[args.shape]
    max_len = args.max_len or (8192 if args.weights else 131072)
    args.out.mkdir(parents=True, exist_ok=True)
    files = {"tokenizer.json": tokenizer(), **configs(shape, max_len, "float32" if args.weights else "bfloat16")}
    if args.weights:
        from safetensors.numpy import save_file

        save_file(weights(shape), args.out / "model.safetensors", metadata={"format": "pt"})
    for name, content in files.items():  # config.json comes last: where it is, the model is complete
        (args.out / name).write_text(json.dumps(content))


if __name__ == "__main__":
    main()
