//! A user's DeepSpeed JSON file.
