"""Write speeches.csv, what seven of Shakespeare's roles say, and passages.csv, passages of four of his plays.

The folder words is a tokenizer of the commonest words of these passages. Needs the extra hf.
"""

import csv
from pathlib import Path

from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from archipel.data.fetch import fetch
from archipel.data.sources.shakespeare import PLAYS, play_roles, play_texts

HERE = Path(__file__).parent
ROLES, LINES, LENGTH = 7, 60, 160
PASSAGES, PASSAGE = 150, 600
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
WORDS = 2000

texts = play_texts(fetch(PLAYS, True))
roles = play_roles(texts)
largest = sorted(roles, key=lambda role: -sum(map(len, roles[role])))[:ROLES]

with (HERE / "speeches.csv").open("w", newline="") as stream:
    table = csv.writer(stream)
    table.writerow(["role", "text"])
    for role in largest:
        text = " ".join(roles[role])
        pieces = [text[start : start + LENGTH] for start in range(0, len(text), LENGTH)]
        table.writerows([role, piece] for piece in pieces[:LINES])

with (HERE / "passages.csv").open("w", newline="") as stream:
    table = csv.writer(stream)
    table.writerow(["play", "text"])
    passages: list[str] = []
    for play in ("hamlet", "henry_v", "merchant_of_venice", "tempest"):
        name = next(name for name in texts if play in name)
        text = " ".join(texts[name].split())[5000:]  # behind the list of roles
        pieces = [text[start : start + PASSAGE] for start in range(0, len(text), PASSAGE)]
        table.writerows([play, piece] for piece in pieces[:PASSAGES])
        passages += pieces[:PASSAGES]

words = Tokenizer(models.WordLevel(unk_token="[UNK]"))
words.normalizer = normalizers.Lowercase()
words.pre_tokenizer = pre_tokenizers.Split(Regex("[a-z]+"), "removed", invert=True)
words.train_from_iterator(passages, trainers.WordLevelTrainer(vocab_size=WORDS, special_tokens=SPECIAL))
words.post_processor = processors.TemplateProcessing("[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)])
names = {f"{name}_token": f"[{name.upper()}]" for name in ("pad", "unk", "cls", "sep", "mask")}
PreTrainedTokenizerFast(tokenizer_object=words, **names).save_pretrained(HERE / "words")
