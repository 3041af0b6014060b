"""Write a tokenizer of a few words in the layout of a hub's cache, for a peer that will not start without one; run by its Python."""

import json
import sys
from pathlib import Path

from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

REVISION = "0" * 40
cache = Path(sys.argv[1])
snapshot = cache / "snapshots" / REVISION
snapshot.mkdir(parents=True)
(cache / "refs").mkdir()
(cache / "refs" / "main").write_text(REVISION)
words = {"<unk>": 0, "<eos>": 1} | {f"w{number}": number for number in range(2, 1000)}
special = {"unk_token": "<unk>", "eos_token": "<eos>"}
tokenizer = Tokenizer(models.WordLevel(words, special["unk_token"]))
tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special).save_pretrained(snapshot)
(snapshot / "config.json").write_text(json.dumps({"model_type": "llama", "vocab_size": len(words)}))
