"""Tracking: metrics to files and services, progress to the terminal, results to plots."""
