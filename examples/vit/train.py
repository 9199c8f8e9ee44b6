"""Makes weights.safetensors, in about two minutes: `python examples/vit/train.py`. Needs PyTorch, transformers
and safetensors. Another PyTorch gives other weights."""
import shutil
import tempfile
from pathlib import Path

import torch
from transformers import ViTConfig, ViTForImageClassification

import digits

CONFIG = dict(image_size=digits.SIDE, patch_size=digits.PATCH, num_channels=1, hidden_size=48, num_hidden_layers=4,
              num_attention_heads=4, intermediate_size=96, hidden_act="gelu", num_labels=10)
EPOCHS, BATCH, RATE = 80, 64, 2e-3


def shifted(images):
    """Each by up to one pixel."""
    padded = torch.nn.functional.pad(images, (1, 1, 1, 1), value=-1)
    places = torch.randint(0, 3, (len(images), 2)).tolist()
    return torch.stack([image[:, y:y + digits.SIDE, x:x + digits.SIDE] for image, (y, x) in zip(padded, places)])


def main():
    torch.manual_seed(0)
    images, labels = digits.load()
    images, labels = torch.tensor(images)[:, None], torch.tensor(labels)
    seen = len(images) - digits.UNSEEN
    model = ViTForImageClassification(ViTConfig(**CONFIG))
    optimizer = torch.optim.AdamW(model.parameters(), RATE, weight_decay=0.05)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, RATE, epochs=EPOCHS, steps_per_epoch=-(-seen // BATCH))
    for epoch in range(EPOCHS):
        model.train()
        for batch in torch.randperm(seen).split(BATCH):
            loss = torch.nn.functional.cross_entropy(model(shifted(images[batch])).logits, labels[batch],
                                                     label_smoothing=0.1)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
        if epoch % 10 == 9:
            model.eval()
            with torch.inference_mode():
                right = (model(images[seen:]).logits.argmax(-1) == labels[seen:]).sum().item()
            print(f"epoch {epoch + 1}: loss {loss.item():.3f}, {right} of {digits.UNSEEN} unseen images are right",
                  flush=True)
    with tempfile.TemporaryDirectory() as folder:  # names in files are not those of modules
        model.save_pretrained(folder)
        shutil.copyfile(Path(folder, "model.safetensors"), Path(__file__).parent / "weights.safetensors")


if __name__ == "__main__":
    main()
