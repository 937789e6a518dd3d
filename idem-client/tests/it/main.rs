//! The client against a real server on loopback, and against a paused clock.

mod support;
mod world;

mod breaker;
mod fates;
mod integrators;
mod jitter;
mod journal;
mod observed;
mod one_layer;
mod pages;
mod readme;
mod redirects;
mod retries;
mod rules;
mod wire;
