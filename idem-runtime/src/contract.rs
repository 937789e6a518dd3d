#![doc = include_str!("contract.md")]
