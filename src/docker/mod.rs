//! The engine adapter on bollard.
