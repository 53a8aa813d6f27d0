"""Agents that are written with a framework, as agents of agentruns: one module for each framework,
each an extra of the same name.
"""
