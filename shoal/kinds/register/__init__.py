"""register"""
