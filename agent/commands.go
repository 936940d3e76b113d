package main

type commandTable struct{}

func newCommandTable(bool) *commandTable { return &commandTable{} }
