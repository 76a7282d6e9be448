"""One module per question. Every figure comes with the machine, the versions, the commit and a measured peer."""
