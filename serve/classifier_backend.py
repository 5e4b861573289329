"""The backend, under the name that repositories of an earlier version import."""

# model.py in such a repository is never rewritten: it imports from `serve.classifier_backend`
from serve.backend.model import TritonPythonModel as TritonPythonModel
