//! Tests of wheels and archive in new environments, and of pages as they are on the screen.

mod install;
mod screens;
