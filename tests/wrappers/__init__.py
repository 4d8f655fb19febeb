"""Tests of ckpttool, in the same folders as the modules they test."""
