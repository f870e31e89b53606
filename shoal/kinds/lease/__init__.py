"""lease"""
