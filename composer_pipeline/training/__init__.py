"""Training: recipes, the trainer contract, token windows, rewards, runs and evaluation.

Importing any module of this room loads no torch; the trainers are commands of their own.
"""
