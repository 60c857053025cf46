"""SageMaker HyperPod, EKS and IAM calls, with errors that name the remedy."""
