"""A dataset version as one self-contained HTML file to read and to show."""
