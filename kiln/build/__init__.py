"""The build stage: plan purely which packages to make and how, then have the engine make them one by one."""
