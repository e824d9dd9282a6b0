"""Which parameters of a model are its hidden matrices."""

from torch import nn


def hidden_matrices(model: nn.Module) -> set[str]:
    """Names of the matrices and convolutions between the embeddings and the output layer.

    The output layer is the last fully connected one; in a model with embeddings only where it gives one number a token,
    for otherwise the embedding of the tokens serves as that too.
    """
    embeddings = [module for module in model.modules() if isinstance(module, nn.Embedding)]
    layers = [module for module in model.modules() if isinstance(module, nn.Linear)]
    tokens = {embedding.num_embeddings for embedding in embeddings}
    outputs = [layer for layer in layers[-1:] if not tokens or layer.out_features in tokens]
    outside = {id(layer.weight) for layer in (*embeddings, *outputs)}
    return {name for name, p in model.named_parameters() if p.ndim >= 2 and id(p) not in outside}
