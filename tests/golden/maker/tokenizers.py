"""Small tokenizers of every kind that checkpoints use, with what transformers encodes and decodes with them."""
import json
import random
import shutil
import tempfile
import pathlib

from tokenizers import (AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers)
from transformers import AutoTokenizer

CORPUS = ["The quick brown fox jumps over the lazy dog.", "Paris is the capital of France, and it rains.",
          "def main(argc, argv):\n    return argc + 1\n", "naïve café — déjà vu; Straße, čeština, русский текст",
          "1234567890 + 3.14159 = ?", "日本語の文章 と 中文 句子", "the the the of of and and in in to to"] * 20
TEXTS = ["", " ", "a", "The capital of France is Paris.", "  two spaces,\n\nnew lines\tand tabs ", "naïve Straße 😀👩‍👩‍👧 ok",
         "日本語と中文🇫🇷", "<s>not text</s> but tokens", "<|im_start|>user\nhi<|im_end|>\n", "1234567890",
         "don't can't WE'LL", "a\u0301 combining, \u200b zero width", "русский"]
SPECIAL = ["<unk>", "<s>", "</s>", "<|im_start|>", "<|im_end|>"]


def byte_level():
    tok = Tokenizer(models.BPE())
    tok.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(pattern=__import__("tokenizers").Regex(
            r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"),
            behavior="isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tok.decoder = decoders.ByteLevel()
    tok.train_from_iterator(CORPUS, trainers.BpeTrainer(
        vocab_size=400, special_tokens=SPECIAL, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False))
    tok.post_processor = processors.TemplateProcessing(single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", 1)])
    return tok


def byte_fallback(strip=True):
    """As Llama 2's: spaces become ▁, unknown characters bytes."""
    tok = Tokenizer(models.BPE(byte_fallback=True, fuse_unk=True, unk_token="<unk>"))
    tok.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")] if strip
                                          else [normalizers.Replace(" ", "▁")])
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    tok.decoder = decoders.Sequence(steps + ([decoders.Strip(" ", 1, 0)] if strip else []))
    data = [line.encode("ascii", "ignore").decode() for line in CORPUS]
    tok.pre_tokenizer = pre_tokenizers.Split("▁", behavior="merged_with_next")
    tok.train_from_iterator(data, trainers.BpeTrainer(
        vocab_size=500, special_tokens=SPECIAL + [f"<0x{i:02X}>" for i in range(256)], show_progress=False))
    spec = json.loads(tok.to_str())
    # Bytes are ordinary tokens, as in real checkpoints.
    spec["added_tokens"] = [t for t in spec["added_tokens"] if not t["content"].startswith("<0x")]
    spec["pre_tokenizer"] = None
    spec["model"]["byte_fallback"] = True
    tok = Tokenizer.from_str(json.dumps(spec))
    tok.post_processor = processors.TemplateProcessing(single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", 1)])
    return tok


def metaspace():
    tok = Tokenizer(models.Unigram())
    tok.normalizer = normalizers.NFKC()
    tok.pre_tokenizer = pre_tokenizers.Metaspace()
    tok.decoder = decoders.Metaspace()
    tok.train_from_iterator(CORPUS, trainers.UnigramTrainer(vocab_size=300, special_tokens=SPECIAL, unk_token="<unk>", show_progress=False))
    return tok


def wordpiece():
    tok = Tokenizer(models.WordPiece(unk_token="<unk>"))
    tok.normalizer = normalizers.BertNormalizer()
    tok.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tok.decoder = decoders.WordPiece()
    tok.train_from_iterator(CORPUS, trainers.WordPieceTrainer(vocab_size=300, special_tokens=SPECIAL, show_progress=False))
    return tok


def suffix():
    tok = Tokenizer(models.BPE(unk_token="<unk>", end_of_word_suffix="</w>"))
    tok.pre_tokenizer = pre_tokenizers.Whitespace()
    tok.decoder = decoders.BPEDecoder()
    tok.train_from_iterator(CORPUS, trainers.BpeTrainer(vocab_size=300, special_tokens=SPECIAL, end_of_word_suffix="</w>", show_progress=False))
    return tok


NAMES = dict(unk_token="<unk>", bos_token="<s>", eos_token="</s>")
# name → (tokenizer, tokenizer_config)
KINDS = {
    "byte_level": (byte_level, NAMES),
    "byte_level_no_bos": (byte_level, NAMES | dict(add_bos_token=False)),
    "byte_level_bos_eos": (byte_level, NAMES | dict(add_bos_token=True, add_eos_token=True, additional_special_tokens=["<extra>"])),
    "byte_fallback": (byte_fallback, NAMES | dict(add_bos_token=True, eos_token={"__type": "AddedToken", "content": "</s>", "special": True, "lstrip": False, "rstrip": False, "normalized": False, "single_word": False})),
    "byte_fallback_no_strip": (lambda: byte_fallback(False), NAMES),
    "metaspace": (metaspace, NAMES),
    "wordpiece": (wordpiece, NAMES),
    "suffix": (suffix, NAMES),
}


def make(here) -> None:
    out = here / "tokenizers"
    out.mkdir(exist_ok=True)
    cases = []
    for name, (build, config) in KINDS.items():
        config = dict(tokenizer_class="PreTrainedTokenizerFast", **config)
        tok = build()
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder)
            (path / "tokenizer.json").write_text(json.dumps(json.loads(tok.to_str()), ensure_ascii=False))
            (path / "tokenizer_config.json").write_text(json.dumps(config))
            reference = AutoTokenizer.from_pretrained(folder)
            shutil.copy(path / "tokenizer.json", out / f"{name}.json")
        rng = random.Random(5)
        size = len(reference)
        texts = [dict(text=t, ids=reference.encode(t, add_special_tokens=False), ids_special=reference.encode(t)) for t in TEXTS]
        streams = [t["ids_special"] for t in texts] + [[rng.randrange(size) for _ in range(40)] for _ in range(20)]
        decoded = [dict(ids=ids, text=reference.decode(ids), text_skip=reference.decode(ids, skip_special_tokens=True)) for ids in streams]
        cases.append(dict(name=name, config=config, size=size, encode=texts, decode=decoded))
        print(name, size)
    (out / "cases.json").write_text(json.dumps(cases, ensure_ascii=False, separators=(",", ":")).replace('{"ids"', '\n{"ids"') + "\n")
