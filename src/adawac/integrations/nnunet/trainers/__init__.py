"""What nnU-Net searches for trainers: it imports every module of this folder, by its bare name."""
