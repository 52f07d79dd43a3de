"""A Hugging Face model in a pipeline: GPT-2 as a chain that shares the modules of the model.

    python examples/hugging_face.py

A pipeline needs a chain of layers. GPT-2 is one at heart: embeddings, blocks one after the other, a last norm and a
head. Three small modules say so; they hold the model's own parts, so training the chain trains the model.

Input and output embedding are usually one matrix (tied weights). In a pipeline they sit on the first and the last rank,
which would each need the other's gradient. So the configuration unties them: tie_word_embeddings=False.
"""

import argparse
from copy import deepcopy

import torch
from torch import Tensor, nn
from transformers import GPT2Config, GPT2LMHeadModel

import headrace as hr


class Embed(nn.Module):
    """Tokens [batch, sequence] → [batch, sequence, width]."""

    def __init__(self, model: GPT2LMHeadModel) -> None:
        super().__init__()
        self.wte, self.wpe, self.drop = model.transformer.wte, model.transformer.wpe, model.transformer.drop

    def forward(self, tokens: Tensor) -> Tensor:
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        return self.drop(self.wte(tokens) + self.wpe(positions))


class Block(nn.Module):
    """A block of the model, which takes and gives hidden states."""

    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        self.block = block

    def forward(self, hidden: Tensor) -> Tensor:
        output = self.block(hidden)
        return output[0] if isinstance(output, tuple) else output


class Head(nn.Module):
    """[batch, sequence, width] → logits [batch, sequence, vocabulary]."""

    def __init__(self, model: GPT2LMHeadModel) -> None:
        super().__init__()
        self.ln_f, self.lm_head = model.transformer.ln_f, model.lm_head

    def forward(self, hidden: Tensor) -> Tensor:
        return self.lm_head(self.ln_f(hidden))


def chain(model: GPT2LMHeadModel) -> nn.Sequential:
    """The model as a chain; its parameters are the model's own."""
    return nn.Sequential(Embed(model), *(Block(block) for block in model.transformer.h), Head(model))


def next_token_loss(logits: Tensor, tokens: Tensor) -> Tensor:
    """Each position predicts the next token, as the model's own loss does."""
    return nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--ranks", type=int, default=2)
    options.add_argument("--micro-batches", type=int, default=4)
    options.add_argument("--steps", type=int, default=5)
    o = options.parse_args()
    if o.steps < 1:
        options.error("--steps must be at least 1")

    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=128, n_positions=32, n_embd=64, n_layer=4, n_head=4, tie_word_embeddings=False,
        resid_pdrop=0, embd_pdrop=0, attn_pdrop=0,  # masks would differ between whole batch and micro-batches
        attn_implementation="sdpa",  # causal without a mask; "eager" would need the mask that the whole model makes
        bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    model = GPT2LMHeadModel(config).double()  # random weights, nothing is downloaded; float64 to compare closely
    unsplit = deepcopy(model)
    tokens = torch.randint(0, config.vocab_size, (8, 32))

    expected = next_token_loss(unsplit(input_ids=tokens).logits, tokens)  # with labels= it would round to float32
    expected.backward()
    with hr.Pipeline(chain(model), next_token_loss, ranks=o.ranks, micro_batches=o.micro_batches) as pipe:
        first = pipe.step(tokens, tokens)
        torch.testing.assert_close(first, expected.detach(), rtol=1e-12, atol=0)
        wanted = dict(unsplit.named_parameters())
        for name, parameter in model.named_parameters():
            torch.testing.assert_close(parameter.grad, wanted[name].grad, rtol=1e-9, atol=1e-12, msg=name)
        print(f"loss {float(first):.6f}; {len(wanted)} gradients equal those of the unsplit model")

        optimizer = torch.optim.AdamW(pipe.named_parameters(), lr=1e-2)
        for _ in range(o.steps):
            optimizer.step()
            optimizer.zero_grad()
            loss = pipe.step(tokens, tokens)
    with torch.no_grad():
        again = next_token_loss(model(input_ids=tokens).logits, tokens)  # the model that you hold has learnt
    print(f"after {o.steps} steps {float(loss):.6f}; the Hugging Face model itself says {float(again):.6f}")


if __name__ == "__main__":
    main()
