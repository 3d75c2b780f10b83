import torch

# one thread everywhere: small products do not gain from a second, and tests run side by side
torch.set_num_threads(1)
