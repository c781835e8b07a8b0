"""All that is drawn with Matplotlib."""
