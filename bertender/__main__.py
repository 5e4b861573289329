"""`python -m bertender`, which `accelerate launch -m bertender` needs."""

from bertender.cli.main import main

main()
