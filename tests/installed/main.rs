//! Tests of wheels and archive in new environments, and of pages as readers see them on the screen.

mod install;
mod screens;
