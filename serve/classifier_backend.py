"""The backend under the name that repositories of an earlier version import."""

# the model.py of such a repository is never rewritten: it has `from serve.classifier_backend`
from serve.backend.model import TritonPythonModel as TritonPythonModel
