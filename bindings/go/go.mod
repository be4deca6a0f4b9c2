module inband

go 1.19
