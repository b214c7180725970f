"""What transformers computes from a checkpoint in fp32 (weights as stored, widened), for README.md's golden.* files."""
import json

import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM

LENGTHS = (1, 5, 130, 300)
NEW = 48
TOP = 8
FREE_MARGIN = 0.02
WIRE = ((2,), (2, 4))  # a hop ends after these layers


def load(path, dtype=torch.float32):
    return AutoModelForCausalLM.from_pretrained(path, dtype=dtype, attn_implementation="eager").eval()


def layers_of(model):
    return model.transformer.h if model.config.model_type == "gpt2" else model.model.layers


class Wire:
    """Rounds hidden states to bf16 after the layers that end a hop, as frames do."""

    def __init__(self, model, splits):
        self.handles = [layers_of(model)[k - 1].register_forward_hook(self.rounded) for k in splits]

    @staticmethod
    def rounded(module, inputs, output):
        cut = lambda t: t.to(torch.bfloat16).to(t.dtype)
        return (cut(output[0]), *output[1:]) if isinstance(output, tuple) else cut(output)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for handle in self.handles:
            handle.remove()


@torch.no_grad()
def greedy(model, prompt, new):
    """`new` arg-max ids with their log-probabilities and margins to the second best; no stop at eos."""
    ids, cache, step, out = list(prompt), None, list(prompt), []
    for _ in range(new):
        result = model(torch.tensor([step]), past_key_values=cache, use_cache=True)
        cache, logits = result.past_key_values, result.logits[0, -1].double()
        best = logits.topk(2)
        token = best.indices[0].item()
        out.append((token, (logits.log_softmax(-1)[token]).item(), (best.values[0] - best.values[1]).item()))
        ids.append(token)
        step = [token]
    return [t for t, _, _ in out], [round(l, 6) for _, l, _ in out], [round(m, 6) for _, _, m in out]


def random_prompt(generator, length):
    return torch.randint(3, 2048, (length,), generator=generator).tolist()


def free_prompt(model, generator, length):
    """A prompt whose greedy continuation never comes near a tie."""
    best = None
    for _ in range(60):
        prompt = random_prompt(generator, length)
        ids, logprobs, margins = greedy(model, prompt, NEW)
        rank = (min(margins) > FREE_MARGIN, min(len(set(ids)), 12), min(margins))
        if best is None or rank > best[0]:
            best = (rank, prompt, ids, logprobs, margins)
        if rank[0] and rank[1] == 12:
            break
    return best[1:]


@torch.no_grad()
def reference(path, texts=None):
    model, low = load(path), load(path, torch.bfloat16)
    dynamic = model.config.to_dict().get("rope_parameters", {}).get("rope_type") == "dynamic"
    generator = torch.Generator().manual_seed(7)
    prompts, tensors = [], {}
    error = power = 0.0

    def entry(kind, prompt, ids, logprobs, margins):
        nonlocal error, power
        index = len(prompts)
        full = model(torch.tensor([prompt + ids])).logits[0].float()
        rows = full[: len(prompt)] if dynamic else full
        error += (low(torch.tensor([prompt + ids])).logits[0].float() - full).square().sum().item()
        power += full.square().sum().item()
        positions = sorted({0, len(prompt) // 2, len(prompt) - 1, len(rows) - 1})
        top = rows[positions].topk(TOP)
        best = rows.topk(2).values
        prompts.append(dict(
            kind=kind, free=bool(ids) and min(margins) > FREE_MARGIN, prompt_ids=prompt, completion_ids=ids,
            logprobs=logprobs, margin=margins, top_positions=positions, top_ids=top.indices.tolist(),
            top_logits=[[round(v, 6) for v in row] for row in top.values.tolist()],
            argmax=rows.argmax(-1).tolist(), argmax_margin=[round(v, 5) for v in (best[:, 0] - best[:, 1]).tolist()]))
        tensors[f"{index}.logits"] = rows[positions[-2:]].contiguous().clone()
        return index

    for length in LENGTHS:
        if dynamic and length + NEW > model.config.max_position_embeddings:
            # Frequencies follow the length here: only a whole pass over the prompt says what is right.
            entry("one_pass", random_prompt(generator, length), [], [], [])
            continue
        prompt = random_prompt(generator, length)
        entry("random", prompt, *greedy(model, prompt, NEW))
    for length in (3, 9, 17, 40, 70):
        entry("random", *free_prompt(model, generator, length))
    for prompt in texts or []:
        entry("text", prompt, *greedy(model, prompt, NEW))

    states = model(torch.tensor([prompts[1]["prompt_ids"]]), output_hidden_states=True).hidden_states
    # The last entry is taken after the final norm: README.md.
    tensors["1.hidden"] = torch.stack([s[0] for s in states]).contiguous()
    wire = []
    for splits in WIRE:
        if splits[-1] >= len(layers_of(model)):
            continue
        with Wire(model, splits):
            for index in range(1, len(prompts)):
                if prompts[index]["kind"] == "one_pass":
                    continue
                prompt = prompts[index]["prompt_ids"]
                ids, logprobs, margins = greedy(model, prompt, NEW)
                wire.append(dict(splits=splits, prompt=index, completion_ids=ids, logprobs=logprobs, margin=margins))
                if index in (1, 2):
                    name = f"{index}.wire.{'+'.join(map(str, splits))}"
                    tensors[name] = model(torch.tensor([prompt])).logits[0, -1:].float().contiguous()
    return dict(bf16_nmse=error / power, prompts=prompts, wire=wire), tensors


def texts_of(path):
    """Prompts in words, and a long one, for the trained checkpoints."""
    old = json.loads((path / "reference.json").read_text()) if (path / "reference.json").exists() else []
    prompts = [p["prompt_ids"] for p in old]
    long = [i for p in old for i in p["prompt_ids"] + p["completion_ids"]]
    return prompts + [long[:130], long[:300]] if prompts else []


def make(here, names) -> None:
    for path in sorted((here / "checkpoints").iterdir()):
        if names and path.name not in names or path.name == "tiny-llama-4x":  # the same numbers as tiny-llama
            continue
        numbers, tensors = reference(path, texts_of(path))
        text = json.dumps(numbers, separators=(",", ":")).replace('{"kind"', '\n{"kind"').replace('{"splits"', '\n{"splits"')
        (path / "golden.json").write_text(text + "\n")
        save_file(tensors, path / "golden.safetensors")
        size = sum((path / f"golden.{e}").stat().st_size for e in ("json", "safetensors"))
        free = sum(p["free"] for p in numbers["prompts"])
        print(f"{path.name}: {size} bytes, bf16 nmse {numbers['bf16_nmse']:.2e}, {free} free prompts", flush=True)
