"""`python -m bertender`, which `accelerate launch -m bertender` needs."""

from bertender.cli import main

main()
