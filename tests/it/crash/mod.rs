//! Crash points: each place between two calls of a worker, × each thing that can happen to a process or a
//! network there. See `actors/src/testing/crash_points/`.

mod bed;
mod cells;
mod lanes;
mod matrix;
mod operations;
mod process;
mod recipe_cells;
mod recipe_work;
mod recipes;
mod shapes;
mod victim;
