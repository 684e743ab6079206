"""The admission webhook: rules and patches, pure but for its counter."""
