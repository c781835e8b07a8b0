"""The arena: policies compared in fixed tasks, on seeds that nothing else uses."""
