"""The manifests of backups and archives, and the places where archives are."""
