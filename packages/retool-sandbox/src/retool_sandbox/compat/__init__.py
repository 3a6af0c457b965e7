"""Drop-in replacements for modules that others' examples bring along."""
