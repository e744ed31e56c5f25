"""Training: recipes, the trainer contract, token windows, rewards, runs and evaluation.

``composer_pipeline.window_messages`` gives a prompt the window that a model was trained with.

Importing any module of this room loads no torch; the trainers are commands of their own.
"""
