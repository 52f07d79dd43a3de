"""Headrace: pipeline-parallel training of PyTorch models – planned, proved, run and explained."""
