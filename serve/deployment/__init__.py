"""Deploying: a new version of a served model takes the place of the old one, or nothing changes."""

from serve.deployment.config import DeployConfig
from serve.deployment.deploy import Deployment, deploy

__all__ = ["DeployConfig", "Deployment", "deploy"]
